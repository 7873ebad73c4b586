"""Judge a training job: its checkpoints, its data order and its upload to S3 storage."""
