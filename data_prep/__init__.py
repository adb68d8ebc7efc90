"""A corpus of texts into tokenised, hashed litdata shards: `dualpath prepare`.

The way of a document: `corpora` finds its file, `fetching` downloads it; `encoding`
hands its row to a worker, which cleans and tokenises it (`pieces`, `text`); `mix`
decides whether and where it is written, by `shards` and `records`, into the
`out_folder`.

- Part: what has arrived so far of a file that is downloaded.
- Piece: some documents of one file, cleaned and tokenised; what a
  preparation is continued by.
- Portion: the documents of one source that are written.
- Chunk: one file of tokens of a finished data folder, as litdata calls it.
"""
