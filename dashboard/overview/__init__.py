"""What puts several rooms on one page: the overview, the list of work, the search, the frame around every page. It imports
every room that has pages. Only addresses and templates call it."""
