"""`exlm verify` and `exlm doctor`."""

import pytest

from exlm.describe.on_disk import verify
from exlm.errors import InputError
from exlm.storage.manifest import write_manifest
from exlm_command.doctor import doctor


def test_verify_names_what_has_changed_in_any_directory_below(tmp_path, capsys):
    for name in ("run", "run/checkpoint-00000002"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_bytes(bytes(100))
        write_manifest(tmp_path / name, [tmp_path / name / "weights"])
    verify(str(tmp_path))
    assert capsys.readouterr().out.count("as it was written") == 2
    (tmp_path / "run/checkpoint-00000002/weights").write_bytes(bytes(99) + b"\1")
    with pytest.raises(InputError, match="1 of 2 directories are damaged"):
        verify(str(tmp_path))
    assert "checkpoint-00000002: weights does not match its SHA-256" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="nothing in it can be checked"):
        verify(str(tmp_path / "empty"))


def test_doctor_names_versions(capsys):
    facts = doctor()
    assert facts["torch"].startswith("2.")
    printed = capsys.readouterr().out
    assert all(name in printed and value in printed for name, value in facts.items())
