"""Tables for tests, from the settings that they are about."""

from exlm.tasks.config import TaskConfig
from exlm.tasks.rows.labelled_table import labelled_table
from exlm.tasks.rows.table import unlabelled_table


def make_table(
    rows, path, text_column, label_columns, *, class_names=None, pair_column=None, **settings
):
    """The table of the rows of a file, or of several by part; without labels if `label_columns` is
    []."""
    if label_columns == []:
        return unlabelled_table(rows, str(path), text_column, pair_column)
    files = rows if isinstance(rows, dict) else {"train": rows}
    config = TaskConfig(
        str(path),
        text_column=text_column,
        label_columns=label_columns,
        pair_column=pair_column,
        **settings,
    )
    return labelled_table(files, config, class_names)
