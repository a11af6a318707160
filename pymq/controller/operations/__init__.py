"""Operations that the active zkserver carries out, commit by commit."""
