"""Reading and writing files: atomic writes, checksums, safetensors, input that is not trusted."""
