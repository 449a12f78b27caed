/* Accepts --auto-resume=N on srun, sbatch and salloc, as HyperPod's SPANK plugin does, and shows it to the tasks as
 * SLURMLAB_AUTO_RESUME. It resumes nothing.   gcc -shared -fPIC -o autoresume.so autoresume.c */
#include <stdlib.h>
#include <string.h>
#include <slurm/spank.h>

SPANK_PLUGIN(autoresume, 1);

static char given[16];

static int on_option(int value, const char *argument, int remote)
{
	if (!argument || (strcmp(argument, "0") && strcmp(argument, "1"))) {
		slurm_error("autoresume: --auto-resume takes 0 or 1, not %s", argument ? argument : "(none)");
		return -1;
	}
	strncpy(given, argument, sizeof(given) - 1);
	return 0;
}

static struct spank_option option = {
	"auto-resume", "0|1", "accept HyperPod's auto-resume switch", 1, 0, (spank_opt_cb_f) on_option
};

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
	return spank_option_register(spank, &option);
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
	if (given[0])
		spank_setenv(spank, "SLURMLAB_AUTO_RESUME", given, 1);
	return 0;
}
