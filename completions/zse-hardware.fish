# fish completion of zse-hardware
complete -c zse-hardware -l json -d 'a JSON object instead of text'
complete -c zse-hardware -l measure -d 'measure memory, arithmetic and page cache, too (about a second)'
complete -c zse-hardware -l file -r -d 'with --measure the file whose disk is read; its own pages are dropped first'
complete -c zse-hardware -l threads -x -d 'with --measure threads (default one for each processor)'
complete -c zse-hardware -l root -r -d 'read proc and sys below this folder instead of / another machines, or a containers hosts'
complete -c zse-hardware -l help -s h -d 'show this help'
complete -c zse-hardware -l version -s V -d 'show the version'
complete -c zse-hardware -n __fish_is_first_arg -a 'check'
