"""The tables of the crawl: what each row holds, and how one generation of the crawl DB becomes the next."""
