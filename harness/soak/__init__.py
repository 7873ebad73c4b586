"""Launch a job many times on one cluster, keep a ledger of every launch, and look for leaks."""
