"""Where documents come from: files here, Nemotron-CC, the Hugging Face hub, the sample."""
