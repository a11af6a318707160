"""Formats of tables: a folder of Parquet files, Delta Lake, Iceberg."""
