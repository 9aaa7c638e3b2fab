"""From a command to records: plan the runs, train each, and leave its record behind."""
