"""The report: a recording as one page that opens anywhere. Plain data first, the page last."""
