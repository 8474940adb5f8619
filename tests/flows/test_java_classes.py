"""What our own classes in Java do for Spark."""

from __future__ import annotations

import shutil

import pytest

from penstock.flows.engine import java_classes
from tests.parts import about

pytestmark = pytest.mark.skipif(shutil.which("javac") is None, reason="this Java has no compiler: no classes of ours")


@about("closures", "one_task")
def test_they_are_compiled_and_found_before_sparks_own(spark):
    for name in ("penstock.OneTask", "org.apache.spark.util.SparkClosureCleaner$"):
        place = spark._jvm.java.lang.Class.forName(name).getProtectionDomain().getCodeSource().getLocation()
        assert place.getPath() == str(java_classes.jar())


@about("files")
def test_local_files_are_made_with_their_permissions_and_without_chmod(spark, tmp_path, monkeypatch):
    hadoop = spark._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(spark._jvm.java.net.URI.create("file:///"), spark._jsc.hadoopConfiguration())
    assert files.getClass().getName() == "penstock.PlainFiles"
    file = hadoop.Path(str(tmp_path / "made"))
    files.create(file).close()
    for mode in ("rw-------", "rwxr-xr-x"):
        files.setPermission(file, hadoop.permission.FsPermission.valueOf(f"-{mode}"))
        assert files.getFileStatus(file).getPermission().toString() == mode
