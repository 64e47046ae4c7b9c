"""Five questions to a private dataset."""
