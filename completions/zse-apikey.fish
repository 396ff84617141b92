# fish completion of zse-apikey
complete -c zse-apikey -l rate-limit -x -d 'create requests a minute'
complete -c zse-apikey -l token-limit -x -a 'N[/min /day]' -d 'create tokens a minute or a day; may be given for both'
complete -c zse-apikey -l expires -x -d 'create 2027-01-31, 2027-01-31T120000Z, or from now 90d, 12h, 30m'
complete -c zse-apikey -l scope -x -d 'create chat, embeddings, models, admin (default chat,embeddings)'
complete -c zse-apikey -l model -x -d 'create only models of this name; may be repeated'
complete -c zse-apikey -l home -r -d 'folder of the keys (default ZSE_HOME, else ~/.zse)'
complete -c zse-apikey -l keys -x -d 'keys in PostgreSQL instead postgresql//USER@HOST/DATABASE'
complete -c zse-apikey -l json -s j -d 'one JSON object'
complete -c zse-apikey -l print-defaults -d 'print the options that have a default, and the defaults'
complete -c zse-apikey -l help -s h -d 'show this help'
complete -c zse-apikey -l version -s V -d 'show the version'
complete -c zse-apikey -f
complete -c zse-apikey -n __fish_is_first_arg -a 'create list status rotate reset enable disable delete'
