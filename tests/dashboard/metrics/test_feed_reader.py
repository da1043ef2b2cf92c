"""A server whose feed is not understood, of another release say, is an error of that server alone."""
