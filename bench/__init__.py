"""Speed, accuracy, load and loading time, measured."""
