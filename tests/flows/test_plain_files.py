"""Spark writes checkpoints without starting a process for each file."""

from __future__ import annotations

import shutil

import pytest

pytestmark = pytest.mark.skipif(shutil.which("javac") is None, reason="this Java has no compiler")


def test_local_files_are_made_with_their_permissions_and_without_chmod(spark, tmp_path, monkeypatch):
    hadoop = spark._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(spark._jvm.java.net.URI.create("file:///"), spark._jsc.hadoopConfiguration())
    assert files.getClass().getName() == "penstock.PlainFiles"
    file = hadoop.Path(str(tmp_path / "made"))
    files.create(file).close()
    for mode in ("rw-------", "rwxr-xr-x"):
        files.setPermission(file, hadoop.permission.FsPermission.valueOf(f"-{mode}"))
        assert files.getFileStatus(file).getPermission().toString() == mode
