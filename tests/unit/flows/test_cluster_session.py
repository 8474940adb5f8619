"""What a Spark cluster lacks is said in one paragraph, and the project's own modules reach its workers."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ClusterError
from penstock.flows import cluster_session
from penstock.flows.cluster_session import unfit, write_modules


def test_modules_of_the_project_are_imported_from_the_archive(tmp_path: Path) -> None:
    for name in ("beside.py", "pkg/inner/deep.py", "whole/__init__.py", "whole/part.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"HERE = {name!r}\n")
    sources = [
        ("beside", tmp_path / "beside.py"),
        ("pkg.inner.deep", tmp_path / "pkg/inner/deep.py"),
        ("whole", tmp_path / "whole/__init__.py"),
        ("whole.part", tmp_path / "whole/part.py"),
    ]
    archive = write_modules(sources, tmp_path / "modules.zip")
    imports = "; ".join(f"import {name}; print({name}.HERE)" for name, _ in sources)
    words = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {imports}"]
    said = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/")
    assert said.stdout.split() == ["beside.py", "pkg/inner/deep.py", "whole/__init__.py", "whole/part.py"]


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ('java.io.IOException: Cannot run program "/opt/py/bin/python": error=2', "has no Python '/opt/py/bin/python'"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", "has another Python"),
        ("x\nModuleNotFoundError: No module named 'scipy'\n", "cannot import 'scipy'"),
    ],
)
def test_what_a_worker_lacks_is_named(said: str, means: str) -> None:
    error = unfit(said)
    assert error is not None
    assert means in error.message
    assert error.hint


def test_any_other_failure_is_not_a_workers() -> None:
    assert unfit("ValueError: no") is None


def test_a_master_that_does_not_answer_is_said_before_spark_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        cluster_session._reach(f"spark://127.0.0.1:{port}")
    monkeypatch.setattr(cluster_session, "_MASTER_S", 0.0)
    with pytest.raises(ClusterError, match="does not answer"):
        cluster_session._reach(f"spark://127.0.0.1:{port}")
