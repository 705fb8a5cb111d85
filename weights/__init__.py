"""Published weights on this machine: what is known of them, the hubs, verification, downloading. No torch."""
