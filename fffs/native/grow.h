/* Arrays that grow, for columns whose length is not known beforehand. */
#ifndef FFFS_GROW_H
#define FFFS_GROW_H

#include "fault.h"

#include <stdlib.h>

/* Changes the size in bytes of *array, which the caller frees. Returns 0; or -ENOMEM, and then it is unchanged. */
static inline int fffs_resize(void *array, size_t size)
{
    void **pointer = array;
    int32_t unused;
    void *grown = fffs_fault(FFFS_FAULT_MEMORY, &unused) ? NULL : realloc(*pointer, size);

    if (!grown)
        return -ENOMEM;
    *pointer = grown;
    return 0;
}

/* How large an array becomes that needs room for wanted items: it doubles at least. realloc(3) moves the pages of large
 * arrays without copying, and pages that are not used yet take no memory. */
static inline size_t fffs_next_room(size_t room, size_t wanted)
{
    return room * 2 > wanted ? room * 2 : wanted;
}

/* Makes room for wanted bytes or items of a size in *array. Returns 0 or -ENOMEM. */
static inline int fffs_grow(void *array, size_t *room, size_t wanted, size_t size)
{
    if (wanted <= *room)
        return 0;
    size_t next = fffs_next_room(*room, wanted);
    int status = fffs_resize(array, next * size);
    if (!status)
        *room = next;
    return status;
}

#endif
