"""Series in files: tables in and out, and pictures of forecasts."""
