"""A corpus of texts into tokenised, hashed litdata shards: `dualpath prepare`.

The way of a document: `corpora` finds its file, `fetching` downloads it; `encoding`
has tasks make `pieces` of it (`shares`, `piece_maker`, `text`); `duplicates` judges it
by its keys and its text; `mix` decides whether and where it is written, by `shards` and
`records`, into the `out_folder`. An `engine` runs the tasks, in this process, in others
or on a Ray cluster.

- Piece: some documents of one file, cleaned and tokenised; what a
  preparation is continued by.
- Share: the pieces of a file that one task makes.
- Group: consecutive pieces of one source, whose documents one task judges.
- Portion: the documents of one source that are written.
- Chunk: one file of tokens of a finished data folder, as litdata calls it.
"""
