alter table execution_jobs drop column carried, drop column generated_by, drop column seed;
