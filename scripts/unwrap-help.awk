# unwrap-help.awk - put each option of a usage text and its whole description on one line.
# A line that begins far to the right continues the one before it; after an option without a
# description it is the description, which two spaces precede.
/^               / && held != "" {
  sub(/^ +/, "")
  held = held (described ? " " : "  ") $0
  described = 1
  next
}
{
  if (NR > 1) print held
  held = $0
  described = /[^ ]  /
}
END { print held }
