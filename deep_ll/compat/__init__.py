"""deep_ll under other libraries' names. Nothing here is imported unless it is asked for."""
