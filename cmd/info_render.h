/* info_render.h - zse-info render: turn conversations into text with a chat template. */
#ifndef ZSE_CMD_INFO_RENDER_H
#define ZSE_CMD_INFO_RENDER_H

/* argv[0] is "render".  Returns the exit code. */
int info_render(int argc, char **argv);

#endif
