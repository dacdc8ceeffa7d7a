"""PocketBase: a store that refuses a second record with the same reference."""
