"""Pages that combine several rooms: the overview, the list of jobs, the search, the frame around every page. The room imports
every room that has pages. Only addresses and templates call it."""
