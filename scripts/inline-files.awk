# inline-files.awk - write a page, with the files of its folder that it names as @FILE@ inside.
#
# usage: awk -v version=V -f scripts/inline-files.awk web/index.html
#
# A file stands alone between two tags, whose text is then exactly its bytes: its hash in a policy
# is that of the file. @VERSION@ is replaced by V in the page, but in no file inside it.

/^<[a-z]+>@[a-z]+\.[a-z]+@<\/[a-z]+>$/ {
  split($0, part, "@")
  folder = FILENAME
  sub(/[^\/]*$/, "", folder)
  printf "%s", part[1]
  while ((got = (getline line < (folder part[2]))) > 0)
    print line
  if (got < 0) {
    printf "inline-files: %s%s: cannot be read\n", folder, part[2] >"/dev/stderr"
    exit 1
  }
  print part[3]
  next
}
{
  gsub(/@VERSION@/, version)
  print
}
