"""What a service needs and a model does not: settings, parsing, the queue, limits, metrics, logs."""
