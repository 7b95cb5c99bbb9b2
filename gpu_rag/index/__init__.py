"""Build side: a corpus in, a published generation out. One module per numbered stage; `build.py` has their order."""
