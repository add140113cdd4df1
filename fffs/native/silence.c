/* The servers of a batch: which ones bring nothing any more, and are given up. */
#include "silence.h"
#include "grow.h"
#include "objects.h"

#include <stdlib.h>

void fffs_silence_end(struct fffs_silence *self)
{
    free(self->servers);
    self->servers = NULL;
    self->count = self->room = self->given_up = 0;
}

int32_t fffs_silence_server(struct fffs_silence *self, int32_t object)
{
    for (size_t i = 0; i < self->count; i++)
        if (fffs_objects_share_server(self->servers[i].object, object))
            return (int32_t)i;
    if (fffs_grow(&self->servers, &self->room, self->count + 1, sizeof *self->servers))
        return -ENOMEM;
    self->servers[self->count] = (struct fffs_server){.object = object};
    return (int32_t)self->count++;
}

void fffs_silence_break(struct fffs_silence *self, uint32_t server, int64_t when)
{
    struct fffs_server *one = &self->servers[server];

    if (when <= one->progress)
        return;
    one->progress = when;
    one->failures = 0;
}

void fffs_silence_answer(struct fffs_silence *self, uint32_t server, int64_t latency)
{
    struct fffs_server *one = &self->servers[server];
    int64_t older = one->latency - one->latency / 4; /* a slow one is forgotten after some that are faster */

    one->latency = latency > older ? latency : older;
}

void fffs_silence_note(struct fffs_silence *self, uint32_t server, uint32_t enough, int status)
{
    struct fffs_server *one = &self->servers[server];

    if (one->status || ++one->failures < enough)
        return;
    one->status = status;
    self->given_up++;
}

bool fffs_silence_answered(struct fffs_silence *self, int32_t object)
{
    int32_t server = fffs_silence_server(self, object);

    return server >= 0 && self->servers[server].progress;
}
