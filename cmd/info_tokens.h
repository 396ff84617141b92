/* info_tokens.h - zse-info tokenize and zse-info detokenize. */
#ifndef ZSE_CMD_INFO_TOKENS_H
#define ZSE_CMD_INFO_TOKENS_H

/* argv[0] is the subcommand's name.  Both return the exit code. */
int info_tokenize(int argc, char **argv);
int info_detokenize(int argc, char **argv);

#endif
