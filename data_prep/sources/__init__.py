"""Sources of documents: files here, Nemotron-CC, the Hugging Face hub, the sample."""
