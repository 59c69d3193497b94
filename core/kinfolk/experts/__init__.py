"""Where the experts of mixture-of-experts layers lie."""
