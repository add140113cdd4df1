"""Records in data engines: what ``fffs.ray`` and ``fffs.dask`` have in common."""
