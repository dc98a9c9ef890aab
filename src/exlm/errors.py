"""The one exception that users are meant to see."""


class InputError(ValueError):
    """A file, row, option or checkpoint cannot be used; the message says which one and the way out.

    The command line prints the message alone and exits with status 2.
    """
