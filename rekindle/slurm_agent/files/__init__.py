"""Users' files, touched only in expendable processes with deadlines."""
