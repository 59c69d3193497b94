"""DFlash: a drafter that proposes a block of tokens in one forward (arXiv 2602.06036)."""
