"""Pure data: what each rank of a group sends, receives and combines, round by round."""
