"""Planning: the cost model, provisioning and the search methods. Knows nothing of the runtime."""
