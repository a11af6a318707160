"""A topic as a table of Parquet files, Delta Lake or Iceberg: :func:`pymq.spark.table_view`."""
