"""The loop that joins the parts: measure a job, plan it, run it, compare with the prediction, and learn from it."""
