"""Sources of an upload besides the browser: folders, buckets, URLs, Triton repositories, an MLflow registry and Hugging Face
caches. A source lists its files and streams their bytes from an offset (`base`); `table` lists the sources. Each of them reads
only what an administrator allows by a setting. Batch jobs read folders and buckets by the same rules."""
