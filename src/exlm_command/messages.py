"""What the parser's errors say, in one sentence."""

import re
from collections.abc import Collection

from exlm.errors import InputError
from exlm_command.commands import did_you_mean, find_similar


def explain_error(error: BaseException, options: Collection[str]) -> str:
    """What a parser's error says, in one line: the message of the InputError that caused it, or
    else its own, in plain words if it is a common one. `options` are the names of all options."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    message = str(error).replace("arguments: -- ", "arguments: ")  # -- is of `expand_options`
    # Group 'train.optimizer' does not accept option 'stepz'
    # Option 'trainn.steps' is not accepted
    if re.match("(Group|Option) '.+ accept", message):
        # The setting stands in a recipe: `expand_options` has looked up all on the command line.
        setting = ".".join(re.findall(r"'(\S+)'", message))
        hint = did_you_mean(find_similar(setting, options)) or ", so take it out of the recipe"
        return f"this command has no setting {setting}{hint}"
    lines = [line.strip(" -") for line in message.splitlines()]
    # Given value type: <class 'str'>
    # Subtypes: [<class 'int'>, typing.Literal['all']]
    useful = [line for line in lines if not line.startswith(("Given value", "Subtypes"))]
    return _explain_wrong_type(message) or " ".join(useful)


def _explain_wrong_type(message: str) -> str | None:
    """The sentence for a value whose type its setting does not allow, such as `passes is x; it must
    be int`. None if `message` says something else, or a type is not one of the two forms below."""
    # Parser key "passes":
    #   - Expected a <class 'int'>. Got value: x
    #   - Expected a typing.Literal['all']. Got value: x
    key = re.match('Parser key "(.+?)":', message)
    values = re.findall("(?:Got|Given) value: (.*)", message)
    types = re.findall(r"Expected an? (?:<class '(.+?)'>|typing.Literal\[(.*?)\])", message)
    all_are_simple = len(types) == message.count("Expected a") > 0
    if not (key and values and all_are_simple):
        return None
    # Given value: {'learning_rate': 0.001}
    # Given value: NestedArg(key='learning_rate', val='1e-3')
    value = re.escape(values[0])
    entry = re.search(rf"Given value: .*\b(\w+)'(?:: |, val=)'?{value}'?[,}})]", message)
    if entry and types[0][0] == "list":
        example = f"for example [{values[0]}]"
        return f"{key[1]}.{entry[1]} is {values[0]}; it must be a list of values, {example}"
    names = [f"one of {choices}" if choices else name for name, choices in types]
    names = ["null" if name == "NoneType" else name for name in names]
    return f"{key[1]} is {values[0]}; it must be {' or '.join(names)}"
