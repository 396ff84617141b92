# deploy.bats - the files of scripts/deploy agree with their schemas, the programs and the sources.
# shellcheck disable=SC2154
setup() { cd "$BATS_TEST_DIRNAME/../.." || exit 1; }
has() { build/venv/bin/python -c 'import importlib.util as u, sys; sys.exit(not u.find_spec(sys.argv[1]))' "$1" 2>/dev/null; }

@test "the manifests for Kubernetes are valid" {
  has kubernetes_validate || skip "no Python package kubernetes-validate"
  run build/venv/bin/python -B tests/serve/manifests.py schema
  echo "$output"
  [ "$status" = 0 ]
}

@test "the manifests name options, endpoints, ports and metrics that the programs have" {
  has yaml || skip "no Python package yaml"
  run build/venv/bin/python -B tests/serve/manifests.py programs
  echo "$output"
  [ "$status" = 0 ]
}

@test "the context of an image has all that make needs" {
  while read -r allowed; do
    # shellcheck disable=SC2086
    cp -r --parents $allowed "$BATS_TEST_TMPDIR"                # a name, or a pattern
  done < <(sed -n 's/^!//p' .dockerignore)
  make -C "$BATS_TEST_TMPDIR" -n GPU=none all >/dev/null
}

@test "make dist writes a tarball of what is committed, with its version in the name" {
  git rev-parse HEAD >/dev/null 2>&1 || skip "not a clone"
  local made name
  made=$(make -s B="$BATS_TEST_TMPDIR" dist)
  name=$(basename "$made" .tar.gz)
  [[ $name =~ ^zse-[0-9]+\.[0-9]+\.[0-9]+(\+git[0-9]+\.[0-9a-f]{8})?$ ]] || { echo "$made"; return 1; }
  diff <(tar -tzf "$made" | grep -v '/$' | sort) <(git ls-tree -r --name-only HEAD | sed "s|^|$name/|" | sort)
}
