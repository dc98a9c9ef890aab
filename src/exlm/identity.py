"""Metadata of a dataclass's field: whether two runs that differ in it can be the same run
(`identity` in `exlm/storage/runs.py`)."""

# For settings that do not change what a run computes, or that another setting contains.
NOT_IDENTITY = {"identity": "never"}
# For settings that earlier versions did not have, and whose default is what those versions did.
IDENTITY_IF_CHANGED = {"identity": "if changed"}
