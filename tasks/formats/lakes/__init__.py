"""Tables of data lakes, Delta Lake and Apache Iceberg: snapshots of tables to read, and tables to write.

A table is a folder with Parquet files and metadata that says which of them each of its versions has. Only `delta` and
`iceberg` import the libraries of the formats, and only when they are called; files are written by this package, in
bounded memory, and enter a version of the table by one atomic commit.
"""
