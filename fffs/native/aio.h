/* The Linux AIO backend (aio.c). */
#ifndef FFFS_AIO_H
#define FFFS_AIO_H

#include "contexts.h"

extern const struct fffs_backend fffs_aio;

#endif
