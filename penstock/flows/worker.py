"""Spark's Python workers are forked from here, with the log's reader already imported: a fork is 50 times cheaper.

Spark starts this module instead of `pyspark.daemon`; it is never imported by ours.
"""

from pyspark.daemon import manager

import penstock.flows.source  # noqa: F401 what every worker needs

if __name__ == "__main__":
    manager()
